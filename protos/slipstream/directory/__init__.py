"""Who tells gateways which verify services there are: a file, or a server of `DirectoryService`."""
