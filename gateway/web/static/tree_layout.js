// Where the nodes of a verified tree are drawn.
import { hierarchy, tree as layoutTree } from "./vendor/d3-hierarchy.js";

export const ROW = 24;
export const COLUMN = 118;

// The root is node -1; the target's own token hangs below the last accepted node.
function nested(step) {
  const { tree, tokens } = step;
  const root = { node: -1, text: step.before ?? "the prompt", accepted: true, kind: "root", children: [] };
  const at = new Map([[-1, root]]);
  const right = new Set(tree ? tree.accepted : []);
  (tree ? tree.token_ids : []).forEach((id, node) => {
    const made = {
      node,
      text: id === null ? null : tree.texts[node],
      accepted: right.has(node),
      kind: "draft",
      proposer: tree.proposers[node],
      probability: tree.log_probs ? Math.exp(tree.log_probs[node]) : null,
      children: [],
    };
    at.set(node, made);
    at.get(tree.parents[node]).children.push(made);
  });
  const last = at.get(tree && tree.accepted.length ? tree.accepted[tree.accepted.length - 1] : -1);
  tokens
    .filter((token) => token.origin !== "draft")
    .forEach((token) => last.children.unshift({ node: null, text: token.text, accepted: true, kind: "own", children: [] }));
  return root;
}

// Nodes and links with x to the right and y downwards, and the size of all. The accepted path comes last, to lie on top.
export function layOut(step) {
  const laid = layoutTree().nodeSize([ROW, COLUMN])(hierarchy(nested(step)));
  const [nodes, links] = [laid.descendants(), laid.links()];
  const top = Math.min(...nodes.map((each) => each.x));
  const place = (each) => ({ x: each.y, y: each.x - top });
  return {
    width: COLUMN * (laid.height + 1),
    height: ROW + Math.max(...nodes.map((each) => each.x)) - top,
    nodes: nodes.map((each) => ({ ...each.data, ...place(each) })).sort((a, b) => a.accepted - b.accepted),
    links: links
      .map(({ source, target }) => ({ from: place(source), to: place(target), accepted: target.data.accepted }))
      .sort((a, b) => a.accepted - b.accepted),
  };
}
