import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { beforeEach, describe, expect, test } from 'vitest';

import { AttachmentQueue, type QueuePosition, type QueuedCommand } from './attachment-queue.js';

const ATTACHMENT = { network: 'net', containerId: 'a', interfaceName: 'eth0' };
const OTHER = { ...ATTACHMENT, interfaceName: 'net1' };

let nowMs = 0;
let queue: AttachmentQueue;
let events: string[];

beforeEach(() => {
  nowMs = 1_000;
  queue = new AttachmentQueue({
    nowMs: () => nowMs,
    monotonicMs: () => nowMs,
    sleep: () => Promise.resolve('elapsed'),
    after: () => () => undefined,
  });
  events = [];
});

function queuedCommand(rest: Partial<QueuedCommand> = {}): QueuedCommand {
  return {
    command: 'ADD',
    attachment: ATTACHMENT,
    startedNs: undefined,
    deadlineMs: 10_000,
    cancel: new AbortController(),
    ...rest,
  };
}

/** A command that runs until the test ends it, or is cancelled. */
function start(name: string, rest: Partial<QueuedCommand> = {}) {
  let finish: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => (finish = resolve));
  const each = queuedCommand(rest);
  const { signal } = each.cancel;
  const cancelled = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(new Failure('CANCELLED', String(signal.reason))));
  });
  cancelled.catch(() => undefined);
  const ended = queue.run(each, async () => {
    events.push(`${name} begins`);
    try {
      await Promise.race([finished, cancelled]);
    } finally {
      events.push(`${name} ends`);
    }
  });
  ended.catch(() => undefined);
  return { finish, ended };
}

const queued = () => new Promise((resolve) => setImmediate(resolve));

describe('commands of one attachment', () => {
  test('run one at a time, in order of arrival, also after one that failed', async () => {
    const commands = ['a', 'b', 'c'].map((name) => start(name, { command: 'CHECK' }));
    await queued();
    expect(events).toEqual(['a begins']);
    for (const { finish, ended } of commands) {
      finish();
      await ended;
    }
    expect(events).toEqual(['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
    await expect(queue.run(queuedCommand(), () => Promise.reject(new Error('x')))).rejects.toThrow('x');
    expect(await queue.run(queuedCommand(), () => Promise.resolve('y'))).toBe('y');
  });

  test.each([OTHER, { ...ATTACHMENT, network: 'net2' }, { ...ATTACHMENT, containerId: 'b' }])(
    'do not wait for commands of %j',
    async (attachment) => {
      start('a', { startedNs: 5n });
      const other = start('b', { attachment, command: 'DEL', startedNs: 9n });
      await queued();
      expect(events).toEqual(['a begins', 'b begins']);
      other.finish();
      await other.ended;
      expect(await queue.run(queuedCommand({ command: 'CHECK', attachment }), () => Promise.resolve('y'))).toBe('y');
      const { cancel } = queuedCommand();
      start('late', { startedNs: 6n, cancel });
      expect(cancel.signal.aborted).toBe(false);
      expect(events).toEqual(['a begins', 'b begins', 'b ends']);
    },
  );

  test('do nothing when their deadline passed in the queue', async () => {
    const first = start('a');
    const second = start('b', { deadlineMs: 2_000 });
    nowMs = 2_000;
    first.finish();
    await expect(second.ended).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(events).toEqual(['a begins', 'a ends']);
  });

  test('do nothing when they were cancelled in the queue', async () => {
    const first = start('a');
    const cancel = new AbortController();
    const second = start('b', { cancel });
    cancel.abort(new Failure('CANCELLED', 'gone'));
    first.finish();
    await expect(second.ended).rejects.toMatchObject({ message: 'gone' });
    expect(events).toEqual(['a begins', 'a ends']);
  });
});

describe('a DEL', () => {
  test('cancels the ADDs before it, and runs after they end', async () => {
    const running = start('running');
    const waiting = start('waiting');
    await queued();
    const del = start('del', { command: 'DEL' });
    await expect(running.ended).rejects.toMatchObject({ code: 'CANCELLED' });
    await expect(waiting.ended).rejects.toMatchObject({ code: 'CANCELLED' });
    await queued();
    expect(events).toEqual(['running begins', 'running ends', 'del begins']);
    del.finish();
    await del.ended;
  });

  test('runs also when its caller disconnected in the queue', async () => {
    const cancel = new AbortController();
    const first = start('a', { command: 'CHECK' });
    const del = queue.run(queuedCommand({ command: 'DEL', cancel }), () => Promise.resolve('done'));
    cancel.abort(new Failure('CANCELLED', 'gone'));
    first.finish();
    expect(await del).toBe('done');
  });

  test('runs however long it waited in the queue', async () => {
    const first = start('a', { command: 'CHECK' });
    const del = queue.run(queuedCommand({ command: 'DEL', deadlineMs: 2_000 }), () => Promise.resolve('done'));
    nowMs = 3_000;
    first.finish();
    expect(await del).toBe('done');
  });

  test('cancels neither another DEL, nor a CHECK, nor an ADD after it', async () => {
    const all = [
      start('check', { command: 'CHECK' }),
      start('del 1', { command: 'DEL' }),
      start('del 2', { command: 'DEL' }),
      start('add'),
    ];
    for (const { finish, ended } of all) {
      finish();
      await ended;
    }
    expect(events.filter((event) => event.endsWith('begins'))).toHaveLength(4);
  });
});

describe('ADDs since a time', () => {
  const names = (position: QueuePosition) => queue.addedSince(position).map(({ interfaceName }) => interfaceName);
  const since = (atMs: number) => names(queue.positionAt(atMs));

  test('are all queued, in-flight or later ended ones, with any result', async () => {
    await queue.run(queuedCommand(), () => Promise.resolve());
    nowMs = 2_000;
    expect([since(1_000), since(1_001)]).toEqual([['eth0'], []]);
    const running = start('b', { attachment: OTHER });
    await queued();
    expect(since(1_001)).toEqual(['net1']);
    running.finish();
    await running.ended;
    await expect(queue.run(queuedCommand(), () => Promise.reject(new Error('x')))).rejects.toThrow('x');
    expect(since(2_000).sort()).toEqual(['eth0', 'net1']);
  });

  test('are also commands that ended later by a clock that was set back since', async () => {
    const position = queue.positionAt(nowMs);
    nowMs -= 500;
    await queue.run(queuedCommand(), () => Promise.resolve());
    expect(names(position)).toEqual(['eth0']);
    expect(names(queue.positionAt(1_000))).toEqual([]);
  });

  test('do not include other commands', async () => {
    for (const command of ['DEL', 'CHECK', 'GC', 'REPLAY'] as const) {
      expect(await queue.run(queuedCommand({ command }), () => Promise.resolve(since(0)))).toEqual([]);
    }
    expect(since(0)).toEqual([]);
  });

  test('are forgotten after two minutes', async () => {
    await queue.run(queuedCommand(), () => Promise.resolve());
    nowMs += 120_000;
    await queue.run(queuedCommand({ attachment: OTHER, deadlineMs: nowMs + 1 }), () => Promise.resolve());
    expect(since(0)).toEqual(['net1']);
  });
});

describe('an ADD that started before a DEL that overtook it', () => {
  const del = async (startedNs: bigint | undefined) =>
    queue.run(queuedCommand({ command: 'DEL', startedNs }), () => Promise.resolve());
  const add = (startedNs: bigint | undefined, attachment = ATTACHMENT) =>
    queue.run(queuedCommand({ startedNs, attachment }), () => Promise.resolve('done'));

  test('is refused', async () => {
    await del(200n);
    await expect(add(199n)).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  test('is refused after an even older DEL too', async () => {
    await del(200n);
    await del(100n);
    await expect(add(199n)).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  test('differs from one that started later, of another attachment, or at an unknown time', async () => {
    await del(200n);
    expect(await add(201n)).toBe('done');
    expect(await add(199n, OTHER)).toBe('done');
    expect(await add(undefined)).toBe('done');
  });

  test('differs from one that started while the clock was set back', async () => {
    nowMs = 3_601_000;
    await queue.run(queuedCommand({ command: 'DEL', startedNs: 3_600_999_000_000n, deadlineMs: nowMs + 1 }), () =>
      Promise.resolve(),
    );
    nowMs = 1_000;
    expect(await add(999_000_000n)).toBe('done');
    nowMs = 3_601_000;
    const late = queuedCommand({ startedNs: 3_600_998_000_000n, deadlineMs: nowMs + 1 });
    await expect(queue.run(late, () => Promise.resolve())).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  test('is remembered no longer than a shim can wait', async () => {
    await del(200n);
    nowMs += 120_000;
    await queue.run(queuedCommand({ command: 'DEL', attachment: OTHER, startedNs: 300n, deadlineMs: nowMs + 1 }), () =>
      Promise.resolve(),
    );
    expect(
      await queue.run(queuedCommand({ startedNs: 199n, deadlineMs: nowMs + 1 }), () => Promise.resolve('done')),
    ).toBe('done');
  });
});

test('two commands of one attachment never overlap, in any sequence', async () => {
  const command = fc.record({
    command: fc.constantFrom('ADD', 'DEL', 'CHECK'),
    attachment: fc.constantFrom(ATTACHMENT, OTHER),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(command, { maxLength: 12 }), fc.scheduler(), async (commands, scheduler) => {
      const own = new AttachmentQueue({
        nowMs: () => 0,
        monotonicMs: () => 0,
        sleep: () => Promise.resolve('elapsed'),
        after: () => () => undefined,
      });
      const inside = new Map<string, number>();
      let most = 0;
      const taken = commands.map((each) =>
        own
          .run(queuedCommand(each), async () => {
            const key = each.attachment.interfaceName;
            inside.set(key, (inside.get(key) ?? 0) + 1);
            most = Math.max(most, inside.get(key)!);
            await scheduler.schedule(Promise.resolve());
            inside.set(key, inside.get(key)! - 1);
          })
          .catch((error: unknown) => {
            expect(error).toMatchObject({ code: 'CANCELLED' });
          }),
      );
      await scheduler.waitFor(Promise.all(taken));
      expect(most).toBe(commands.length === 0 ? 0 : 1);
    }),
    { seed: 20_261_121, numRuns: 200 },
  );
});
