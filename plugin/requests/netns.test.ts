import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { nodeNetnsReader } from './netns.js';

const NAME = 'plugin-netns';
const PATH = `/run/netns/${NAME}`;
const folder = mkdtempSync(join(tmpdir(), 'podwire-netns-'));
const file = join(folder, 'file');
const link = join(folder, 'link');

beforeAll(() => {
  execFileSync('ip', ['netns', 'add', NAME]);
  execFileSync('mkfifo', [join(folder, 'pipe')]);
  writeFileSync(file, '');
  symlinkSync(PATH, link);
});

afterAll(() => {
  execFileSync('ip', ['netns', 'delete', NAME]);
  rmSync(folder, { recursive: true });
});

const reader = nodeNetnsReader({ id: 'boot', startedAtMs: 0 });

describe('a network namespace', () => {
  test('is identified by boot and inode', () => {
    expect(reader.identify(PATH)).toEqual({
      bootId: 'boot',
      inode: statSync(PATH, { bigint: true }).ino,
    });
  });

  test('is the same through a symbolic link', () => {
    expect(reader.identify(link)).toEqual(reader.identify(PATH));
  });

  test('may be the node’s own where that is allowed', () => {
    const inode = statSync('/proc/self/ns/net', { bigint: true }).ino;
    expect(reader.identify('/proc/self/ns/net', { allowsOwn: true })).toMatchObject({ inode });
    expect(() => reader.identify(file, { allowsOwn: true })).toThrow(/is not a network namespace/);
  });

  test.each([
    ['a path that does not exist', '/run/netns/nowhere', /nowhere does not exist/],
    ['a path below a file', join(file, 'x'), /cannot be read/],
    ['a file', file, /is not a network namespace/],
    ['a folder', folder, /is not a network namespace/],
    ['a pipe, without waiting for its other end', join(folder, 'pipe'), /is not a network namespace/],
    ['a device', '/dev/null', /is not a network namespace/],
    ['a file of the process file system', '/proc/self/status', /is not a network namespace/],
    ['the node’s own', '/proc/self/ns/net', /own network namespace/],
  ])('cannot be %s', (_, path, message) => {
    expect(() => reader.identify(path)).toThrow(
      expect.objectContaining({ code: 'INVALID_NETNS', message: expect.stringMatching(message) }),
    );
  });
});
