"""The health check of a container: does Flower's gRPC health service at this address serve?

    python health.py ADDRESS [END]

Docker marks a container as unhealthy and leaves it at that; what makes it start again is its end. So with END, after so
many failed checks in a row of a service that had been healthy, this one ends it (SIGTERM, and after as many again
SIGKILL), and the restart policy does the rest. Kubernetes does this by itself.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

FAILED = (
    Path(tempfile.gettempdir()) / "fedbayes-failed-checks"
)  # how many in a row; missing before the first success


def trouble(address: str) -> str:
    """Why the service does not serve; empty where it does."""
    import grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    with grpc.insecure_channel(address) as channel:
        try:
            status = HealthStub(channel).Check(HealthCheckRequest(), timeout=5).status
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}"
    return "" if status == HealthCheckResponse.SERVING else f"{address}: not serving"


def judge(wrong: str, end: int) -> str:
    """Count what was found, and end the service where it has failed too often."""
    if not wrong:
        FAILED.write_text("0")
        return ""
    if not end or not FAILED.exists():
        return wrong
    failed = int(FAILED.read_text() or 0) + 1
    FAILED.write_text(str(failed))
    if failed == end:
        os.kill(1, signal.SIGTERM)
    elif failed >= 2 * end:
        os.kill(-1, signal.SIGKILL)  # all but the first process, which ends with its child
    return f"{wrong}, {failed} times in a row"


if __name__ == "__main__":
    sys.exit(judge(trouble(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) or 0)
