// Asks for an answer and follows it. Where the server does not trace, the answer comes without trees.
import { ApiError, chat } from "./api.js";
import { Answer } from "./answer.js";

const isTraceRefused = (error) =>
  error instanceof ApiError && (error.status === 400 || error.status === 429) && error.field === "speculation.trace";

// `onStep(answer)` is called at most once a frame while it grows. Resolves to the answer; a stopped one has finish "stopped".
export async function generate(body, { signal, onStep, onNotice = () => {} }) {
  const traced = { ...body, speculation: { ...body.speculation, trace: true } };
  try {
    return await follow(traced, signal, onStep);
  } catch (error) {
    if (!isTraceRefused(error)) throw error;
    onNotice(`Without trees: ${error.message}`);
    return follow(body, signal, onStep);
  }
}

async function follow(body, signal, onStep) {
  const answer = new Answer();
  let frame = 0;
  const show = () => {
    frame = 0;
    onStep(answer);
  };
  try {
    for await (const choice of chat(body, signal)) {
      answer.add(choice);
      // A page in the background gets no frames; it is shown the end.
      frame = frame || requestAnimationFrame(show);
    }
  } catch (error) {
    if (!signal.aborted) throw Object.assign(error, { answer });
    answer.finish = "stopped";
  } finally {
    cancelAnimationFrame(frame);
    onStep(answer);
  }
  return answer;
}
