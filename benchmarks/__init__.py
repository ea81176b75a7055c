"""Measurements that drive the services from outside: exactness, acceptance, speed and the gateway's cost."""

from slipstream.rpc.experiments import leave_out_event_engine

leave_out_event_engine()  # as in the services, for those whose calls are made or served by a benchmark's own process
