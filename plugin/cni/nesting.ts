/**
 * Whether values in a JSON text lie in more than so many others. JSON.parse reads any depth, and JSON.stringify ends with the stack.
 * @param text - JSON
 */
export function isNestedDeeper(text: string, maxDepth: number): boolean {
  // Each of them takes two characters.
  if (text.length <= 2 * maxDepth) return false;
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') at = endOfString(text, at);
    else if (character === ']' || character === '}') depth--;
    else if (character === '[' || character === '{') depth++;
    if (depth > maxDepth) return true;
  }
  return false;
}

/** @returns where the string ends that begins there */
function endOfString(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
