import { link, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/runtime/durable-file';
import { syncDirectory } from '@podwire/shared/runtime/sync-directory';
import type { Authority, IssuedCertificate } from '@podwire/shared/tls/authority';

import { timeText } from './certificate.js';

/** Accessible to its owner only, as it has keys. */
const DIRECTORY_MODE = 0o700;

/** Names of the files, which podwire-ipam also uses for its own authority. */
export const CA_CERTIFICATE = 'ca.crt';
const CA_KEY = 'ca.key';

const AUTHORITY_NAME = 'podwire';

const DAY_MS = 86_400_000;

/** Life of a new authority, in milliseconds. */
const AUTHORITY_LIFE_MS = 3650 * DAY_MS;

/** Certificates hold from some minutes ago on, as the clocks of machines differ. */
export const BACKDATED_MS = 300_000;

/** An authority as its directory has it. */
export interface StoredAuthority {
  readonly authority: Authority;
  /** Content of `ca.crt`. */
  readonly text: string;
  /** Whether it was made now. */
  readonly isNew: boolean;
}

/**
 * The authority of a directory; made where there is none.
 * @param mayCreate - whether an authority may be made
 * @throws Failure INVALID_REQUEST where its files cannot be used, STATE_IO
 */
export async function openAuthority(directory: string, mayCreate: boolean, nowMs: number): Promise<StoredAuthority> {
  const certificate = await readOptional(join(directory, CA_CERTIFICATE));
  const key = await readOptional(join(directory, CA_KEY));
  if (certificate !== undefined && key !== undefined) return load(directory, { certificate, key }, nowMs);
  const missing = certificate === undefined ? CA_CERTIFICATE : CA_KEY;
  if (certificate !== undefined || key !== undefined || !mayCreate)
    throw refusal(directory, `${missing} does not exist; restore it, or use another directory`);
  return create(directory, nowMs);
}

async function load(directory: string, files: IssuedCertificate, nowMs: number): Promise<StoredAuthority> {
  // Loaded for this only: the library doubles the memory and the time that a command takes to start.
  const { Authority } = await import('@podwire/shared/tls/authority');
  let authority: Authority;
  try {
    authority = await Authority.load(files);
  } catch (cause) {
    const advice = `restore ${CA_CERTIFICATE} and ${CA_KEY}, or use another directory`;
    throw refusal(directory, `cannot be used: ${messageOf(cause)}; ${advice}`);
  }
  if (authority.untilMs <= nowMs)
    throw refusal(directory, `${CA_CERTIFICATE} expired at ${timeText(authority.untilMs)}; use another directory`);
  return { authority, text: files.certificate, isNew: false };
}

/** The key is put in its place only if there is none: two commands at once must not mix their authorities. */
async function create(directory: string, nowMs: number): Promise<StoredAuthority> {
  const { Authority } = await import('@podwire/shared/tls/authority');
  const validity = { fromMs: nowMs - BACKDATED_MS, untilMs: nowMs + AUTHORITY_LIFE_MS };
  const authority = await Authority.create(AUTHORITY_NAME, validity);
  const { certificate: text, key } = await authority.stored();
  if (!(await writeNewFile(directory, CA_KEY, key)))
    throw refusal(directory, 'another command makes an authority there; repeat the command');
  await writeFile(directory, CA_CERTIFICATE, text);
  return { authority, text, isNew: true };
}

/**
 * Writes a file for its owner only; an earlier one is replaced.
 * @throws Failure STATE_IO
 */
export async function writeFile(directory: string, name: string, content: string): Promise<void> {
  try {
    await mkdir(directory, { recursive: true, mode: DIRECTORY_MODE });
    await putDurably(join(directory, name), content);
  } catch (cause) {
    throw stateFailure(directory, cause);
  }
}

/**
 * Writes a file for its owner only, unless there is one of that name.
 * @returns whether it was written
 * @throws Failure STATE_IO
 */
export async function writeNewFile(directory: string, name: string, content: string): Promise<boolean> {
  const path = join(directory, name);
  try {
    await mkdir(directory, { recursive: true, mode: DIRECTORY_MODE });
    const folder = await mkdtemp(join(directory, '.new-'));
    try {
      await putDurably(join(folder, name), content);
      await link(join(folder, name), path);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
    await syncDirectory(directory);
    return true;
  } catch (cause) {
    if (codeOf(cause) === 'EEXIST') return false;
    throw stateFailure(directory, cause);
  }
}

/**
 * @returns undefined where the file does not exist
 * @throws Failure STATE_IO
 */
export async function readOptional(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    if (codeOf(cause) === 'ENOENT') return undefined;
    throw new Failure('STATE_IO', `${path}: cannot be read; check its access rights (${messageOf(cause)})`, { cause });
  }
}

function refusal(directory: string, reason: string): Failure {
  return new Failure('INVALID_REQUEST', `authority in ${directory}: ${reason}`);
}

function stateFailure(directory: string, cause: unknown): Failure {
  const advice = 'check that this user may write there, and that the file system has free space';
  return new Failure('STATE_IO', `directory ${directory}: cannot be written; ${advice} (${messageOf(cause)})`, {
    cause,
  });
}
