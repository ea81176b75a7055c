// What the server says of itself: the model, its proposers, and what is attached. Asked again every few seconds.
import { useCallback, useEffect, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";

const SECONDS = 3;
const UNKNOWN = { model: null, services: [], sharesAllowed: false, missing: [], status: "", error: null };

// Models are asked for only where a service is ready, as the browser logs each answer that is an error.
async function ask() {
  try {
    const told = await get("services");
    const models = told.verify_services.some((each) => each.ready) ? await get("v1/models") : null;
    return {
      ...(models && { model: models.data[0] }),
      status: told.status,
      missing: told.missing_proposers,
      services: told.verify_services,
      sharesAllowed: told.shares_allowed,
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
