/** A node has few networks, and all pods of a network without capabilities send the same text. */
const KEPT_COUNT = 8;

/** A longer text has values of its pod, and is not worth the memory, in characters. */
const LONGEST_TEXT = 16_384;

/** Remembers the last results of a function of a text. Callers do not change a result. A failure is not remembered. */
export function remembered<Result extends object>(read: (text: string) => Result): (text: string) => Result {
  const results = new Map<string, Result>();
  return (text) => {
    const known = results.get(text);
    if (known) return known;
    const result = read(text);
    if (text.length > LONGEST_TEXT) return result;
    const [oldest] = results.keys();
    if (oldest !== undefined && results.size >= KEPT_COUNT) results.delete(oldest);
    results.set(text, result);
    return result;
  };
}
