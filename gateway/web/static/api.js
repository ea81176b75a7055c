// The server's API. Requests go to the page's own origin alone.
import { events } from "./events.js";
import { apiKey } from "./settings.js";

// What the server refused or broke off, in its words. `field` names what was wrong in the request.
export class ApiError extends Error {
  constructor(message, status, field) {
    super(message);
    Object.assign(this, { status, field });
  }
}

const headers = () => {
  const key = apiKey();
  return key ? { authorization: `Bearer ${key}` } : {};
};

const errorOf = (body, status) => {
  const error = body && body.error;
  return error ? new ApiError(error.message, status, error.param) : new ApiError(`the server answered ${status}`, status);
};

// The answer to a GET as JSON, whatever its status.
export async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok && body.error) throw errorOf(body, answer.status);
  return body;
}

// The answer to a POST of JSON.
export async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw errorOf(told, answer.status);
  return told;
}

// The choices of a streamed chat, one a verify step. Ending the iteration, or the signal, cancels the request.
export async function* chat(body, signal) {
  const answer = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!answer.ok) throw errorOf(await answer.json().catch(() => null), answer.status);
  let ended = false;
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") continue; // the body ends with it
    const chunk = JSON.parse(data);
    if (chunk.error) throw errorOf(chunk, 200);
    for (const choice of chunk.choices) {
      ended = ended || choice.finish_reason !== null;
      yield { seed: chunk.seed, ...choice };
    }
  }
  if (!ended) throw new ApiError("the connection broke before the answer ended", 0);
}
