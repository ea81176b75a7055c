"""What a grammar knows of tokens that are not decided: which drafted ones it forbids, and which it forces."""

from __future__ import annotations

from slipstream_kernels.token_tree import TokenTree
from verify_service.grammar.forced_texts import GRAMMAR
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.request_grammar import RequestGrammar


def legal_part(grammar: RequestGrammar, tree: TokenTree) -> TokenTree | None:
    """Return the nodes of a tree that the grammar allows, given the nodes above each; None where none is left.

    The grammar is at the request's output, where it is afterwards. One that costs too much to ask leaves trees whole.
    """
    if not grammar.may_draft:
        return tree
    with grammar.asked_for_drafts():
        return _legal_part(grammar, tree)


def _legal_part(grammar: RequestGrammar, tree: TokenTree) -> TokenTree | None:
    base = grammar.length
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    kept: list[int] = []
    due = children.get(-1, [])[::-1]
    try:
        while due:
            node = due.pop()
            grammar.go_back(base + tree.depths[node] - 1)
            token = tree.token_ids[node]
            if not grammar.allows(token):
                continue
            kept.append(node)
            if node in children and not grammar.ends_output(token):
                grammar.step(token)
                due += children[node][::-1]
    except GrammarFailure:
        return tree
    finally:
        grammar.go_back(base)
    if len(kept) == len(tree):
        return tree
    return tree.part(sorted(kept)) if kept else None


def forced_tree(grammar: RequestGrammar, max_nodes: int, max_depth: int) -> TokenTree | None:
    """Return the text that must come next as a tree; see `ForcedTexts.tree`. `max_nodes` does not count the root.

    None where nothing is forced. The grammar is at the request's output.
    """
    if not (grammar.may_draft and max_nodes > 0 and max_depth > 0):
        return None
    try:
        with grammar.asked_for_drafts():
            text = grammar.forced()
    except GrammarFailure:
        return None
    return grammar.forced_texts.tree(text, max_nodes, max_depth) if text else None


def is_forced(tree: TokenTree) -> bool:
    """Return whether a tree is one of `forced_tree`."""
    return tree.sources is not None and tree.sources[:1] == (GRAMMAR,)
