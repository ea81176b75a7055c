"""The draft service: hosts proposers and feeds their token trees to a verify service."""
