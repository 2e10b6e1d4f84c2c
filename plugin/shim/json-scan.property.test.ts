import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';

import { buildShim, PATIENT, removeBuild, run, type Build } from '../testing/shim.js';

const SEED = 20_260_801;
const RUNS = 400;
const LONGEST_VERSION_BYTES = 64;

/** The characters of JSON's grammar, and some that it refuses. */
const DAMAGE = ['{', '}', '[', ']', '"', ',', ':', '\\', 'u', '0', '-', '.', 'e', '1', 't', ' ', '\n', '\u0001'];

let build: Build;
beforeAll(() => {
  build = buildShim(PATIENT);
});
afterAll(() => removeBuild(build));

/** The document's version, as JSON.parse reads it; the default without one. */
function versionByParse(document: string): string {
  let parsed: unknown;
  try {
    parsed = JSON.parse(document);
  } catch {
    return '1.1.0';
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return '1.1.0';
  const version: unknown = new Map(Object.entries(parsed)).get('cniVersion');
  if (typeof version !== 'string') return '1.1.0';
  const bytes = Buffer.from(version);
  return bytes.length > 0 && bytes.length <= LONGEST_VERSION_BYTES ? bytes.toString() : '1.1.0';
}

const text = fc.string({ unit: 'binary', maxLength: 8 });
const key = fc.oneof(fc.constantFrom('cniVersion', 'cniversion', 'socket', ''), text);
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.oneof(text, fc.integer(), fc.double({ noNaN: true, noDefaultInfinity: true }), fc.boolean(), fc.constant(null)),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(key, tie('value'), { maxKeys: 4 }),
  ),
}));

/** An object with duplicate keys, and keys with escaped characters. */
const objectText = fc
  .array(fc.tuple(key, fc.boolean(), fc.oneof(text, value)), { maxLength: 5 })
  .map((entries) => entries.map(([name, escaped, member]) => `${keyText(name, escaped)}:${JSON.stringify(member)}`))
  .map((members) => `{${members.join(' ,\n')}}`);

function keyText(name: string, escaped: boolean): string {
  const units = Array.from({ length: name.length }, (_, index) => name.charCodeAt(index).toString(16).padStart(4, '0'));
  return escaped ? `"${units.map((unit) => `\\u${unit}`).join('')}"` : JSON.stringify(name);
}

/** The text with a few of its characters replaced: mostly invalid JSON, sometimes another document. */
const damaged = fc
  .tuple(objectText, fc.array(fc.tuple(fc.nat(), fc.constantFrom(...DAMAGE)), { maxLength: 2 }))
  .map(([document, edits]) =>
    edits.reduce((before, [place, character]) => {
      const at = place % (before.length + 1);
      return before.slice(0, at) + character + before.slice(at + 1);
    }, document),
  );

it('reads a document as JSON.parse does', { timeout: 120_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.oneof(objectText, damaged), fc.constantFrom('NONE', 'VERSION'), async (stdin, command) => {
      const outcome = await run({ program: build.shim, environment: { CNI_COMMAND: command }, stdin });
      const answer: unknown = JSON.parse(outcome.stdout);
      expect(answer).toMatchObject({ cniVersion: versionByParse(Buffer.from(stdin).toString()) });
      expect(outcome.exitCode).toBe(command === 'VERSION' ? 0 : 1);
    }),
    { seed: SEED, numRuns: RUNS },
  );
});
