import {
  ListPolicyDropsResponse,
  NetworkPolicyServiceService,
} from '@podwire/proto/podwire/dataplane/v1/network_policy';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from '../../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const web = { namespace: 'default', name: 'web-0' };
const drop = {
  number: 7n,
  time: new Date('2026-08-01T12:00:00.250Z'),
  direction: 'ingress',
  sourceAddress: '10.65.0.9',
  destinationAddress: '10.65.0.7',
  protocol: 6,
  sourcePort: 40_000,
  destinationPort: 80,
  destinationPod: web,
  reason: 'no-rule-allows',
  message: 'no rule allows it; isolated by NetworkPolicy default/web',
  policies: ['NetworkPolicy default/web'],
};
const ping = {
  ...drop,
  ...{ number: 8n, direction: 'egress', sourcePod: web, destinationPod: undefined },
  ...{ sourceAddress: 'fd65::7', destinationAddress: '2001:db8::1', protocol: 58, destinationPort: undefined },
  ...{ message: 'denied by ClusterNetworkPolicy closed' },
};
const lookup = { ...ping, number: 9n, protocol: 17, destinationPort: 53 };

/** Answers with these responses, one after the other. */
async function serve(...answers: readonly Parameters<typeof ListPolicyDropsResponse.fromPartial>[0][]): Promise<void> {
  const left = [...answers];
  const answer = () => ListPolicyDropsResponse.fromPartial(left.shift() ?? {});
  await fakes.serve(fake(NetworkPolicyServiceService.listPolicyDrops, answer));
}

test('policy drops lists packets with their pod and the reason', async () => {
  await serve({ drops: [drop, ping, lookup], latestNumber: 9n });
  const { exitCode, stdout, stderr } = await fakes.podwirectl('policy', 'drops', '-n', 'default');
  expect([exitCode, stderr]).toEqual([0, '']);
  expect(stdout.split('\n').map((line) => line.replaceAll(/ {2,}/g, ' | '))).toEqual([
    'TIME | DIRECTION | SOURCE | DESTINATION | POD | REASON',
    '2026-08-01T12:00:00Z | ingress | 10.65.0.9 | 10.65.0.7:80/tcp | default/web-0 | no rule allows it; isolated by NetworkPolicy default/web',
    '2026-08-01T12:00:00Z | egress | fd65::7 | 2001:db8::1/icmpv6 | default/web-0 | denied by ClusterNetworkPolicy closed',
    '2026-08-01T12:00:00Z | egress | fd65::7 | [2001:db8::1]:53/udp | default/web-0 | denied by ClusterNetworkPolicy closed',
    '',
  ]);
  expect(fakes.calls).toMatchObject([{ request: { namespace: 'default', afterNumber: 0n } }]);
});

test('policy drops -o json prints the contract’s message', async () => {
  await serve({ drops: [drop], latestNumber: 7n });
  const { stdout } = await fakes.podwirectl('policy', 'drops', '-o', 'json');
  expect(JSON.parse(stdout)).toMatchObject({
    drops: [{ number: '7', reason: 'no-rule-allows', destinationPort: 80, destinationPod: web }],
    latestNumber: '7',
  });
});

test('policy drops -f prints each packet once, with headings once', async () => {
  await serve({}, { drops: [drop], latestNumber: 7n }, { latestNumber: 7n }, { drops: [ping], latestNumber: 8n });
  let waits = 0;
  fakes.sleep = () => Promise.resolve(++waits < 4 ? 'elapsed' : 'aborted');
  const { exitCode, stdout } = await fakes.podwirectl('policy', 'drops', '-f');
  expect(exitCode).toBe(0);
  expect(stdout.match(/TIME|ingress|egress/g)).toEqual(['TIME', 'ingress', 'egress']);
  expect(fakes.calls.map(({ request }) => request)).toMatchObject([
    { afterNumber: 0n },
    { afterNumber: 0n },
    { afterNumber: 7n },
    { afterNumber: 7n },
  ]);
});

test.each([[[]], [['-f']]])('policy drops %j says why a node reports none', async (flags) => {
  await serve({ unavailable: 'the kernel has no nfnetlink_log' });
  const { exitCode, stdout } = await fakes.podwirectl('policy', 'drops', ...flags);
  expect([exitCode, stdout]).toEqual([4, 'dropped packets are not reported: the kernel has no nfnetlink_log\n']);
});

test('policy drops says that there are none, and that packets were lost', async () => {
  await serve({ lostCount: 2n });
  const { exitCode, stdout, stderr } = await fakes.podwirectl('policy', 'drops');
  expect([exitCode, stdout]).toEqual([0, 'dropped packets: none\n']);
  expect(stderr).toMatch(/^hint: some packets are missing/);
});
