"""A gRPC server with health alone: python health_server.py PORT [SECONDS_TO_LIVE] [SECONDS_TO_DRAIN]."""

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

port, life, drain = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])


class Servicer(health.HealthServicer):
    """Says when it is asked a second time: whoever asks one question after the other has had an answer by then."""

    asked = 0

    def Check(self, request, context):
        self.asked += 1
        if self.asked == 2:
            print("asked again", flush=True)
        return super().Check(request, context)


server = grpc.server(ThreadPoolExecutor(1))
servicer = Servicer()
servicer.set("", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
server.add_insecure_port(f"127.0.0.1:{port}")
server.start()
term = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: term.set())
print("ready", flush=True)
if term.wait(life):
    print("draining", flush=True)
    time.sleep(drain)
    print("drained", flush=True)
server.stop(0)
sys.exit(0 if term.is_set() else 3)
