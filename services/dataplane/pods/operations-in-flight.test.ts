import { describe, expect, test } from 'vitest';

import { OperationsInFlight } from './operations-in-flight.js';

const never = () => new AbortController().signal;
const lockKeys = (containerId: string, hostInterfaceName = `podw${containerId}`) => ({
  attachment: { network: 'net', containerId, interfaceName: 'eth0' },
  hostInterfaceName,
});

/** Work that runs until its test ends it. */
function work() {
  let end = (): void => undefined;
  const ended = new Promise<void>((resolve) => (end = resolve));
  let begun = false;
  const run = (): Promise<void> => {
    begun = true;
    return ended;
  };
  return { run, end, begun: () => begun };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

describe('operations', () => {
  test.each([
    ['of one attachment', lockKeys('a', 'podw1'), lockKeys('a', 'podw2')],
    ['for one host interface', lockKeys('a', 'podw1'), lockKeys('b', 'podw1')],
    [
      'for one host interface, without an attachment',
      { ...lockKeys('a', 'podw1'), attachment: undefined },
      lockKeys('b', 'podw1'),
    ],
  ])('%s run one after the other', async (_, first, second) => {
    const underWay = new OperationsInFlight();
    const [one, other] = [work(), work()];
    const both = [underWay.runExclusive(first, never(), one.run), underWay.runExclusive(second, never(), other.run)];
    await turn();
    expect([one.begun(), other.begun()]).toEqual([true, false]);
    one.end();
    await turn();
    expect(other.begun()).toBe(true);
    other.end();
    await Promise.all(both);
  });

  test('of different attachments run concurrently, but one at a time in a pod', async () => {
    const underWay = new OperationsInFlight();
    const pod = { device: 4n, inode: 7n, cookie: 3n };
    const [one, other] = [work(), work()];
    const both = [
      underWay.runExclusive(lockKeys('a'), never(), () => underWay.runInPod(pod, never(), one.run)),
      underWay.runExclusive(lockKeys('b'), never(), () => underWay.runInPod(pod, never(), other.run)),
    ];
    await turn();
    expect([underWay.isBusy(lockKeys('b').attachment), other.begun()]).toEqual([true, false]);
    one.end();
    await turn();
    expect(other.begun()).toBe(true);
    other.end();
    await Promise.all(both);
  });

  test('are awaited by idle, whether they succeed or fail', async () => {
    const underWay = new OperationsInFlight();
    const [one, closing] = [work(), work()];
    const failing = underWay.runExclusive(lockKeys('a'), never(), async () => {
      await one.run();
      underWay.track(closing.run());
      throw new Error('no');
    });
    let isIdle = false;
    const idle = underWay.idle().then(() => (isIdle = true));
    one.end();
    await expect(failing).rejects.toThrow('no');
    await turn();
    expect(isIdle).toBe(false);
    closing.end();
    await idle;
  });
});

test('wiring calls of an attachment are known from their wait to their end', async () => {
  const underWay = new OperationsInFlight();
  const { attachment } = lockKeys('a');
  const [looking, one, other] = [work(), work(), work()];
  const look = underWay.runExclusive(lockKeys('a'), never(), looking.run);
  expect([underWay.isBusy(attachment), underWay.isWiring(attachment)]).toEqual([true, false]);
  const wirings = [one, other].map(({ run }) => underWay.runWiring(lockKeys('a'), never(), run));
  expect([underWay.isWiring(attachment), [...underWay.wiringAttachments()]]).toEqual([true, ['net/a/eth0']]);
  looking.end();
  one.end();
  await Promise.all([look, wirings[0]]);
  expect(underWay.isWiring(attachment)).toBe(true);
  other.end();
  await wirings[1];
  expect([underWay.isWiring(attachment), underWay.wiringAttachments().size, underWay.isBusy(attachment)]).toEqual([
    false,
    0,
    false,
  ]);
});
