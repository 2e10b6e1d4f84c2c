/** The message of an error; any other thrown value as text. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}

/** The code that Node.js sets on its own and the operating system's errors (`ENOENT`); undefined where there is none. */
export function codeOf(thrown: unknown): string | undefined {
  return thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : undefined;
}

/** Catches the error of a missing file. @throws every other error */
export function ignoreAbsent(thrown: unknown): undefined {
  if (codeOf(thrown) !== 'ENOENT') throw thrown;
}
