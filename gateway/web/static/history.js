// Conversations, kept in this browser alone.
const PLACE = "slipstream.history";
const MOST = 50;
const MOST_CHARACTERS = 1_000_000;

export function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE) || "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

// The newest conversations first, as many as fit.
export function save(conversations) {
  let kept = conversations.filter((each) => each.messages.length).slice(0, MOST);
  let text = JSON.stringify(kept);
  while (kept.length > 1 && text.length > MOST_CHARACTERS) {
    kept = kept.slice(0, -1);
    text = JSON.stringify(kept);
  }
  try {
    localStorage.setItem(PLACE, text);
  } catch {
    localStorage.removeItem(PLACE); // it is full; what is open stays on the page
  }
}

export const titleOf = (conversation) => {
  const first = conversation.messages.find((each) => each.role === "user");
  return first ? first.content.slice(0, 60) : "New conversation";
};

export const fresh = () => ({ id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), messages: [] });
