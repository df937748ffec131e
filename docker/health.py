"""The health check of a container: does Flower's gRPC health service at this address serve?"""

import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

with grpc.insecure_channel(sys.argv[1]) as channel:
    try:
        status = HealthStub(channel).Check(HealthCheckRequest(), timeout=5).status
    except grpc.RpcError as error:
        sys.exit(f"{sys.argv[1]}: {error.code().name}")
sys.exit(status != HealthCheckResponse.SERVING)
