// What the server says of itself: the model, its proposers, and what is attached. Asked again every few seconds.
import { useCallback, useEffect, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";

const SECONDS = 3;
const UNKNOWN = { model: null, services: [], sharesAllowed: false, missing: [], status: "", error: null };

async function ask() {
  try {
    const [models, ready, services] = await Promise.all([get("v1/models"), get("ready"), get("services")]);
    const model = models.data[0];
    return {
      model,
      status: ready.status,
      missing: ready.missing_proposers,
      services: services.verify_services,
      sharesAllowed: services.shares_allowed,
      error: null,
    };
  } catch (error) {
    return { error };
  }
}

export function useServer() {
  const [server, setServer] = useState(UNKNOWN);
  const refresh = useCallback(async () => {
    const told = await ask();
    setServer((former) => ({ ...former, ...told }));
  }, []);
  useEffect(() => {
    refresh();
    const timer = setInterval(() => document.hidden || refresh(), 1e3 * SECONDS);
    return () => clearInterval(timer);
  }, []);
  return [server, refresh];
}
