"""Replicas on a Ray of this machine, under kills of raylets, drains and steps of load."""
