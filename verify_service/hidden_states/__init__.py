"""Hidden states of requests: rows, a store beside the pages, and rings in the device's memory."""
