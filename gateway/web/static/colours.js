// Colours of proposers, by a class of the style sheet each.
const COLOURS = 8;
const places = new Map();

// The same class for the same proposer as long as the page is open.
export function classOf(proposer) {
  if (!places.has(proposer)) places.set(proposer, places.size % COLOURS);
  return `p${places.get(proposer)}`;
}

// A token's text such that one sees all of it.
export const visible = (text) =>
  text === "" ? "∅" : text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069]/g, "�");
