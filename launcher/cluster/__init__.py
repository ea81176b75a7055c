"""Verify services on several hosts, placed by Ray, told to gateways by a directory, scaled, drained and exchanged.

`fleet` and `autoscaler` decide, in any clock, and know no Ray. `controller` and `replica` are Ray's actors; `commands`
and `ray_session` are the driver's side. Requests pass none of it.
"""
