import { spawnSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, extname, join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import type { Readable, Writable } from 'node:stream';
import { text } from 'node:stream/consumers';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

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

/**
 * Opens a text in an editor.
 * @param edit - opens a file, and waits until the editor ends
 * @returns the text, and the file that has it
 * @throws Failure of the editor, or INVALID_REQUEST where it leaves no text; the file is removed
 */
export async function editText(content: string, edit: (file: string) => Promise<void>): Promise<NamedText> {
  const file = join(await mkdtemp(join(tmpdir(), 'podwirectl-')), 'object.yaml');
  try {
    await writeText(file, content);
    await edit(file);
    return { file, text: await readFile(file, 'utf8') };
  } catch (cause) {
    await removeEdited(file);
    if (cause instanceof Failure) throw cause;
    throw new Failure('INVALID_REQUEST', `${file}: the edited text cannot be read: ${messageOf(cause)}`, { cause });
  }
}

/** Removes the file of {@link editText}. */
export function removeEdited(file: string): Promise<void> {
  return rm(dirname(file), { recursive: true });
}

/** Opens a file in an editor, and waits until it ends. @throws Failure INVALID_REQUEST where it fails */
export function openEditor(editor: string, file: string): void {
  const { status, error } = spawnSync('/bin/sh', ['-c', `${editor} "$0"`, file], { stdio: 'inherit' });
  if (status !== 0)
    throw new Failure('INVALID_REQUEST', `${editor}: ${error?.message ?? `exit code ${status}`}; set another EDITOR`);
}
