"""Tool calls and JSON answers for the demo target: conversations made by code, and training that goes on with them."""
