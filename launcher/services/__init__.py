"""One service: its command line, settings, ports, process and health."""
