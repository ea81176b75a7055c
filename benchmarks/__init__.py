"""Measurements that drive the services from outside: exactness, acceptance, speed and the gateway's cost."""
