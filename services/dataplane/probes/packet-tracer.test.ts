import { parseAddress } from '@podwire/shared/net/address';
import { expect, test } from 'vitest';

import { traceStep, traceTable } from './packet-tracer.js';

const PACKET = 'iif "v0" oif "podw1" ether saddr 86:71:cb:91:fc:fb ip saddr 10.9.0.2 ip daddr 10.9.0.1 ip ttl 64 ';

test.each([
  [
    `trace id 865f504b ip filter FORWARD packet: ${PACKET}`,
    { kind: 'packet', verdict: '', inputInterface: 'v0', outputInterface: 'podw1' },
  ],
  [
    'trace id 865f504b ip filter INPUT rule jump X (verdict jump X)',
    { kind: 'rule', text: 'jump X', verdict: 'jump X' },
  ],
  [
    'trace id 865f504b ip filter X rule ip protocol icmp counter packets 0 bytes 0 drop comment "foreign" (verdict drop)',
    {
      table: 'ip filter',
      chain: 'X',
      text: 'ip protocol icmp counter packets 0 bytes 0 drop comment "foreign"',
      verdict: 'drop',
    },
  ],
  ['trace id 865f504b inet t c policy drop ', { kind: 'policy', verdict: 'drop' }],
  ['trace id 865f504b inet t c verdict continue ', { kind: 'verdict', verdict: 'continue' }],
])('reads "%s"', (line, expected) => {
  expect(traceStep(line)).toMatchObject({ packetId: '865f504b', ...expected });
});

test.each(['', 'table inet x', 'trace id 1 inet podwire_trace prerouting policy accept'])('skips "%s"', (line) => {
  expect(traceStep(line)).toBeUndefined();
});

test('marks packets in both directions, or of any address', () => {
  const [source, destination] = [parseAddress('10.65.0.1'), parseAddress('10.65.0.2')!];
  const rules = (from: typeof source) =>
    traceTable({ source: from, destination }).chains.map(({ rules: all }) => all.map((rule) => rule.length));
  expect(rules(source)).toEqual([
    [3, 3],
    [3, 3],
  ]);
  expect(rules(undefined)).toEqual([
    [2, 2],
    [2, 2],
  ]);
});
