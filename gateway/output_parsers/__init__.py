"""From a model's text to what it thought, said and called: one file for each form in which models write calls.

A parser takes text in pieces. What it gives out, pieces of one kind joined, is a function of the whole text alone:
however many tokens a verify step commits, and wherever it cuts a marker in two.
"""
