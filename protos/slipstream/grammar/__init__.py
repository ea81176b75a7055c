"""What the output of a request must match, for gateway and verify service alike.

`grammar.Grammar` is the parameter, `codec.decode_grammar` and `encode_grammar` its wire form. `check.check(grammar,
tokenizer)` refuses one that cannot be enforced, naming field and keyword; `text.grammar_text(grammar, specials)` writes
it in the form that llguidance compiles; `tokenizer.load_tokenizer(folder, ...)` reads what both need of a checkpoint.
"""
