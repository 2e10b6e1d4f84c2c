import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import type { Readable, Writable } from 'node:stream';
import { text } from 'node:stream/consumers';

import { Failure } from '@podwire/shared/failure/failure';

/** A text with the file's name, for messages. */
export interface NamedText {
  readonly file: string;
  readonly text: string;
}

const MANIFEST_EXTENSIONS = ['.yaml', '.yml', '.json'];

/**
 * The texts of a file, of the standard input (`-`), or of the manifests in a directory.
 * @param recursive - whether folders in the directory are read too
 * @throws Failure INVALID_REQUEST where one cannot be read
 */
export async function readTexts(path: string, recursive: boolean, stdin: Readable): Promise<NamedText[]> {
  if (path === '-') return [{ file: 'standard input', text: await text(stdin) }];
  try {
    if (!(await stat(path)).isDirectory()) return [{ file: path, text: await readFile(path, 'utf8') }];
    const names = (await readdir(path, { recursive })).filter((name) => MANIFEST_EXTENSIONS.includes(extname(name)));
    const files = names.sort().map((name) => join(path, name));
    return await Promise.all(files.map(async (file) => ({ file, text: await readFile(file, 'utf8') })));
  } catch (cause) {
    throw new Failure('INVALID_REQUEST', `${path}: cannot be read: ${String(cause)}`, { cause });
  }
}

/** @throws Failure INVALID_REQUEST where it cannot be written */
export async function writeText(path: string, content: string): Promise<void> {
  try {
    await writeFile(path, content);
  } catch (cause) {
    throw new Failure('INVALID_REQUEST', `${path}: cannot be written: ${String(cause)}`, { cause });
  }
}

/** Asks on a terminal. @returns whether the answer is yes */
export async function askYes(question: string, stdin: Readable, stderr: Writable): Promise<boolean> {
  const terminal = createInterface({ input: stdin, output: stderr });
  try {
    return /^y(es)?$/i.test((await terminal.question(question)).trim());
  } finally {
    terminal.close();
  }
}
