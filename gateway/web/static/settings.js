// What the visitor chose. The API key lives as long as the tab, the rest in this browser.
const PLACE = "slipstream.settings";
const KEY_PLACE = "slipstream.key";

export const DEFAULTS = {
  system: "",
  temperature: 0.7,
  maxTokens: 256,
  seed: "",
  speculation: "auto", // auto, on or off
  proposer: "",
  maxNodes: "",
  maxDepth: "",
  logprobs: false,
  theme: "auto",
};

export function load() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(PLACE) || "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const save = (settings) => localStorage.setItem(PLACE, JSON.stringify(settings));

export const apiKey = () => sessionStorage.getItem(KEY_PLACE) || "";

export const setApiKey = (key) =>
  key ? sessionStorage.setItem(KEY_PLACE, key) : sessionStorage.removeItem(KEY_PLACE);

const number = (text) => (String(text).trim() === "" ? undefined : Number(text));

// The body of a chat request; undefined fields are left out of JSON.
export function requestBody(settings, model, messages) {
  const enabled = { auto: undefined, on: true, off: false }[settings.speculation];
  return {
    model,
    messages: settings.system ? [{ role: "system", content: settings.system }, ...messages] : messages,
    temperature: number(settings.temperature),
    max_tokens: number(settings.maxTokens),
    seed: number(settings.seed),
    logprobs: settings.logprobs || undefined,
    speculation: {
      enabled,
      proposer: settings.proposer || undefined,
      max_nodes: number(settings.maxNodes),
      max_depth: number(settings.maxDepth),
    },
  };
}
