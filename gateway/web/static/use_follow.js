// Keeps the end of a text that grows in sight, until its reader scrolls away from the end.
import { useEffect, useRef } from "./vendor/htm-preact.js";

const NEAR = 40; // pixels from the end that count as at the end

// The element to scroll, and what to call as it is scrolled. `mark` changes as the text grows, `restart` as another begins.
export function useFollow(mark, restart) {
  const place = useRef(null);
  const following = useRef(true);
  const top = useRef(0); // where it was scrolled to
  useEffect(() => {
    following.current = true;
  }, [restart]);
  useEffect(() => {
    const box = place.current;
    if (box && following.current) box.scrollTop = box.scrollHeight;
  }, [mark, restart]);
  const onScroll = () => {
    const box = place.current;
    const near = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    following.current = near || (following.current && box.scrollTop >= top.current);
    top.current = box.scrollTop;
  };
  return [place, onScroll];
}
