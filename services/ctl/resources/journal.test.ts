import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Fakes } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

describe('journal', () => {
  const entry = {
    attachment: 'net/a/eth0',
    action: 'release',
    order: 7,
    since: '2026-05-04T12:30:00.000Z',
    reason: 'podwire-ipam does not answer',
    lastFault: null,
    providers: ['podwire-ipam'],
    held: [{ address: '10.65.0.7', sequenceNumber: '12' }],
  };
  const journal = (entries: object[], fault: string | null = null) =>
    JSON.stringify({ entries, unreadable: [], fault });

  test('is listed and shown', async () => {
    await fakes.servePlugin((line) => (line === 'GET /journal' ? journal([entry]) : undefined));
    const { exitCode, stdout } = await fakes.podwirectl('journal');
    expect([exitCode, stdout]).toEqual([
      0,
      expect.stringMatching(/^ +7 +\d+d +release +10\.65\.0\.7 +net\/a\/eth0 +podwire-ipam does not answer$/m),
    ]);
    for (const which of ['7', 'a', 'net/a/eth0'])
      expect((await fakes.podwirectl('journal', 'show', which)).stdout).toMatch(
        /^Addresses +10\.65\.0\.7 \(sequence 12\)\nProviders {2,}podwire-ipam$/m,
      );
    expect(await fakes.podwirectl('journal', 'show', '8')).toMatchObject({ exitCode: 3 });
    expect(JSON.parse((await fakes.podwirectl('journal', '-o', 'json')).stdout)).toEqual({
      entries: [entry],
      unreadable: [],
      fault: null,
    });
  });

  test('with an unreadable entry lists the file, and exits with 4', async () => {
    const unreadable = [{ path: '/state/0.json.unreadable', fault: 'of net/b/eth0: version: is 2' }];
    await fakes.servePlugin(() => JSON.stringify({ entries: [], unreadable, fault: null }));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('journal');
    expect([exitCode, stdout]).toEqual([
      4,
      expect.stringMatching(
        /^pending releases: none[^]*^\/state\/0\.json\.unreadable +of net\/b\/eth0: version: is 2$/m,
      ),
    ]);
    expect(stderr).toContain('podwirectl gc');
  });

  test('that cannot be persisted exits with 4', async () => {
    await fakes.servePlugin(() => journal([], 'the disk is full'));
    expect(await fakes.podwirectl('journal')).toMatchObject({
      exitCode: 4,
      stdout: expect.stringContaining('the disk is full'),
    });
  });

  test('is retried, and the entries that are left are listed', async () => {
    let after = journal([{ ...entry, lastFault: 'EBUSY' }]);
    await fakes.servePlugin((line) => (line === 'GET /journal' ? journal([entry, { ...entry, order: 8 }]) : after));
    const left = await fakes.podwirectl('journal', 'retry');
    expect(left).toMatchObject({ exitCode: 1, stdout: expect.stringMatching(/^done: 1 of 2 entries\n[^]*EBUSY/) });
    after = journal([]);
    expect(await fakes.podwirectl('journal', 'retry')).toMatchObject({
      exitCode: 0,
      stdout: 'done: 2 of 2 entries\n',
    });
  });

  describe('discard', () => {
    const pending = {
      ...entry,
      attachment: 'net/b/eth0',
      order: 8,
      action: 'detach-and-release',
      providers: ['host-local'],
    };
    const second = { ...entry, attachment: 'net/b/eth1', order: 9 };
    let entries: object[];
    let sent: string[];
    let fault: string | null;
    beforeEach(async () => {
      [entries, sent, fault] = [[entry, pending, second], [], null];
      await fakes.servePlugin((line, body) => {
        if (line === 'GET /journal') return journal(entries);
        if (line !== 'POST /journal/discard') return undefined;
        sent.push(body);
        return JSON.stringify({ discarded: pending, fault });
      });
    });
    const discard = (...args: string[]) => fakes.podwirectl('journal', 'discard', ...args);

    test.each(['8', 'net/b/eth0'])('of %s shows the consequence, and executes only with --yes', async (which) => {
      const preview = await discard(which);
      expect(preview.stdout).toContain(
        'net/b/eth0 would be discarded: its addresses of host-local (10.65.0.7) may stay allocated, and its wire stays\n',
      );
      expect([preview.exitCode, preview.stderr]).toEqual([
        2,
        expect.stringContaining('to execute it: podwirectl journal discard net/b/eth0 --yes'),
      ]);
      expect(sent).toEqual([]);
      const done = await discard(which, '--yes');
      expect(done).toMatchObject({
        exitCode: 0,
        stdout:
          'net/b/eth0 is discarded: its addresses of host-local (10.65.0.7) may stay allocated, and its wire stays\n',
      });
      expect(done.stderr).toMatch(/podwirectl gc --network net\n.*release them in the records of host-local/);
      expect(done.stderr).not.toContain('release attachment');
      expect(sent).toEqual(['{"attachment":"net/b/eth0"}']);
    });

    test('of an entry without a wire does not mention a wire', async () => {
      const { stdout } = await discard('7');
      expect(stdout).toContain(
        'net/a/eth0 would be discarded: its addresses of podwire-ipam (10.65.0.7) may stay allocated\n',
      );
    });

    test('requires exactly one existing entry', async () => {
      const several = await discard('b', '--yes');
      expect(several).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('net/b/eth0, net/b/eth1') });
      const unknown = await discard('net/c/eth0', '--yes');
      expect(unknown).toMatchObject({ exitCode: 3, stderr: expect.stringContaining('entry "net/c/eth0" not found') });
      expect(sent).toEqual([]);
    });

    test('that a restart may undo exits with 4', async () => {
      fault = 'entries of the journal cannot be removed: EROFS';
      const { exitCode, stdout } = await discard('8', '--yes');
      expect([exitCode, stdout]).toEqual([4, expect.stringContaining(`journal not durable: ${fault}`)]);
    });
  });

  test.each([
    ['was executed meanwhile', [410, '{"code":103,"msg":"it was done"}'] as const, [3, 'it was done']],
    ['cannot be discarded', [503, '{"code":100,"msg":"EIO"}'] as const, [1, 'answered 503']],
    ['is in a plugin of another release', undefined, [1, '(UNIMPLEMENTED)']],
  ])('discard reports an entry that %s', async (_, answer, [code, text]) => {
    await fakes.servePlugin((line) => (line === 'GET /journal' ? journal([entry]) : answer));
    const { exitCode, stderr } = await fakes.podwirectl('journal', 'discard', 'a', '--yes');
    expect([exitCode, stderr]).toEqual([code, expect.stringContaining(String(text))]);
  });

  test('from a plugin of an incompatible release is refused', async () => {
    await fakes.servePlugin(() => JSON.stringify({ entries: [] }));
    expect(await fakes.podwirectl('journal')).toMatchObject({
      exitCode: 1,
      stderr: expect.stringContaining('(UNIMPLEMENTED)'),
    });
  });
});
