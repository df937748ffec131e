"""A site whose clock is CLOCK_AHEAD seconds ahead of everybody's (behind, where negative), as Flower sees it.

Python imports this file by itself when the folder is in PYTHONPATH. (Under libfaketime 0.9.10 Python's own `time.sleep`
fails, or never returns.)
"""

import os
import sys

if "fedbayes.deploy.supervise" in sys.orig_argv:
    import datetime

    import flwr.client.grpc_rere_client.node_auth_client_interceptor as signer

    right = signer.now
    ahead = datetime.timedelta(seconds=float(os.environ["CLOCK_AHEAD"]))
    signer.now = lambda: right() + ahead
