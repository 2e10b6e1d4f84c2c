import { describe, expect, test } from 'vitest';

import { UnderWay } from './operations-in-flight.js';

const never = () => new AbortController().signal;
const place = (containerId: string, hostInterfaceName = `podw${containerId}`) => ({
  attachment: { network: 'net', containerId, interfaceName: 'eth0' },
  hostInterfaceName,
});

/** Work that goes on until it is told to end. */
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

describe('work', () => {
  test.each([
    ['of one attachment', place('a', 'podw1'), place('a', 'podw2')],
    ['for one host interface', place('a', 'podw1'), place('b', 'podw1')],
    [
      'for one host interface, without an attachment',
      { ...place('a', 'podw1'), attachment: undefined },
      place('b', 'podw1'),
    ],
  ])('%s is done one after the other', async (_, first, second) => {
    const underWay = new UnderWay();
    const [one, other] = [work(), work()];
    const both = [underWay.alone(first, never(), one.run), underWay.alone(second, never(), other.run)];
    await turn();
    expect([one.begun(), other.begun()]).toEqual([true, false]);
    one.end();
    await turn();
    expect(other.begun()).toBe(true);
    other.end();
    await Promise.all(both);
  });

  test('of different ones is done side by side, but for one at a time in a pod', async () => {
    const underWay = new UnderWay();
    const pod = { device: 4n, inode: 7n, cookie: 3n };
    const [one, other] = [work(), work()];
    const both = [
      underWay.alone(place('a'), never(), () => underWay.inPod(pod, never(), one.run)),
      underWay.alone(place('b'), never(), () => underWay.inPod(pod, never(), other.run)),
    ];
    await turn();
    expect([underWay.isBusy(place('b').attachment), other.begun()]).toEqual([true, false]);
    one.end();
    await turn();
    expect(other.begun()).toBe(true);
    other.end();
    await Promise.all(both);
  });

  test('is waited for by who wants all to be idle, whatever comes of it', async () => {
    const underWay = new UnderWay();
    const [one, closing] = [work(), work()];
    const failing = underWay.alone(place('a'), never(), async () => {
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

test('calls that wire an attachment are told from others, from their wait to their end', async () => {
  const underWay = new UnderWay();
  const { attachment } = place('a');
  const [looking, one, other] = [work(), work(), work()];
  const look = underWay.alone(place('a'), never(), looking.run);
  expect([underWay.isBusy(attachment), underWay.isWiring(attachment)]).toEqual([true, false]);
  const wirings = [one, other].map(({ run }) => underWay.wiring(place('a'), never(), run));
  expect([underWay.isWiring(attachment), [...underWay.wirings()]]).toEqual([true, ['net/a/eth0']]);
  looking.end();
  one.end();
  await Promise.all([look, wirings[0]]);
  expect(underWay.isWiring(attachment)).toBe(true);
  other.end();
  await wirings[1];
  expect([underWay.isWiring(attachment), underWay.wirings().size, underWay.isBusy(attachment)]).toEqual([
    false,
    0,
    false,
  ]);
});
