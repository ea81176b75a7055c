"""The demonstration models of Slipstream, as files beside this one."""
