"""Stubs generated from the .proto files beside this one."""
