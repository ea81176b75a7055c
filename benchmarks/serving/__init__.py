"""Serving over HTTP as clients meet it: load on any OpenAI server or on ours in each form; are answers the same?"""
