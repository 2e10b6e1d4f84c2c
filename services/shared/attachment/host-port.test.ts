import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { parseAddress } from '../net/address.js';
import { formatHostPortKey, hostPortText, readHostPorts, type HostPortText } from './host-port.js';

const text = (changes: Partial<HostPortText> = {}): HostPortText => ({
  protocol: 'tcp',
  hostPort: 8080,
  podPort: 80,
  hostAddress: '',
  ...changes,
});

function read(...texts: readonly HostPortText[]) {
  const faults: string[] = [];
  const ports = readHostPorts(texts, (field, reason) => faults.push(`${field} ${reason}`));
  return { ports, faults };
}

describe('host ports', () => {
  test('are read with any spelling of the protocol, and without an address where it means any', () => {
    const spellings = [
      text({ protocol: 'UDP' }),
      text({ hostAddress: '0.0.0.0' }),
      text({ protocol: 'sctp', hostAddress: '::' }),
      text({ hostPort: 8081, hostAddress: '0:0:0:0:0:0:0:0' }),
    ];
    const { ports, faults } = read(...spellings);
    expect(faults).toEqual([]);
    expect(ports.map(formatHostPortKey)).toEqual(['udp/8080', 'tcp/8080', 'sctp/8080', 'tcp/8081']);
  });

  test('of one port may have different addresses', () => {
    const { ports, faults } = read(text(), text({ hostAddress: '192.0.2.1' }), text({ hostAddress: 'fd00::1' }));
    expect(faults).toEqual([]);
    expect(ports.map(formatHostPortKey)).toEqual(['tcp/8080', 'tcp/192.0.2.1:8080', 'tcp/[fd00::1]:8080']);
  });

  test('name all their faults', () => {
    const wrong = text({ protocol: 'icmp', hostPort: 0, podPort: 65_536, hostAddress: 'x' });
    const { ports, faults } = read(wrong, text({ hostPort: 1.5 }), text(), text({ podPort: 81 }));
    expect(ports.map(hostPortText)).toEqual([text(), text({ podPort: 81 })]);
    expect(faults).toEqual([
      '[0].protocol is "icmp"; use tcp, udp or sctp',
      '[0].hostPort is 0; a port is 1 to 65535',
      '[0].podPort is 65536; a port is 1 to 65535',
      '[0].hostAddress is "x"; must be an IP address',
      '[1].hostPort is 1.5; a port is 1 to 65535',
      '[3] repeats tcp/8080 of [2]; map each port of the node once',
    ]);
  });

  test('are read back as they were written', () => {
    const ports = fc.record({
      protocol: fc.constantFrom('tcp' as const, 'udp' as const, 'sctp' as const),
      hostPort: fc.integer({ min: 1, max: 65_535 }),
      podPort: fc.integer({ min: 1, max: 65_535 }),
      hostAddress: fc.constantFrom(undefined, parseAddress('192.0.2.1'), parseAddress('fd00::1')),
    });
    fc.assert(
      fc.property(fc.uniqueArray(ports, { selector: formatHostPortKey }), (list) => {
        expect(read(...list.map(hostPortText))).toEqual({ ports: list, faults: [] });
      }),
    );
  });
});
