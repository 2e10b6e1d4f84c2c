import { describe, expect, test } from 'vitest';

import {
  unsupportedVersions,
  formatUnsupportedVersions,
  removeUnsupportedVersions,
  programFaults,
  programsOf,
  type Chain,
} from './chain.js';
import type { ProgramVersions } from './program-versions.js';

const ALL = ['0.3.1', '0.4.0', '1.0.0', '1.1.0'];
const answered = (...versions: string[]): ProgramVersions => ({ kind: 'answered', versions });
const chain = (...types: string[]): Chain => ({
  cniVersion: '1.0.0',
  cniVersions: ALL,
  plugins: types.map((type) => ({ type })),
});

describe('programs of a chain', () => {
  test('are the types of its members and of their IPAM plugins, each once', () => {
    const ipam = { type: 'host-local' };
    const plugins = [{ type: 'ptp', ipam }, { type: 'podwire', ipam }, { type: 'tuning' }, { type: 'tuning' }];
    expect(programsOf({ plugins })).toEqual(['ptp', 'host-local', 'podwire', 'tuning']);
  });

  test('are without Podwire’s own IPAM, which is a program under other plugins only', () => {
    const plugins = [
      { type: 'podwire', ipam: { type: 'podwire-ipam' } },
      { type: 'calico', ipam: { type: 'calico-ipam' } },
    ];
    expect(programsOf({ plugins })).toEqual(['podwire', 'calico']);
    expect(programsOf({ plugins: [{ type: 'ptp', ipam: { type: 'podwire-ipam' } }] })).toEqual(['ptp', 'podwire-ipam']);
  });
});

describe('versions', () => {
  test('that one program lacks are left out and reported', () => {
    const versions = new Map([
      ['podwire', answered(...ALL)],
      ['portmap', answered('0.3.1', '0.4.0', '1.0.0')],
    ]);
    const offered = chain('podwire', 'portmap');
    expect(unsupportedVersions(offered, versions)).toEqual([{ version: '1.1.0', program: 'portmap' }]);
    expect(formatUnsupportedVersions(unsupportedVersions(offered, versions))).toBe('portmap lacks CNI 1.1.0');
    expect(removeUnsupportedVersions(offered, versions)).toEqual({
      ...offered,
      cniVersions: ['0.3.1', '0.4.0', '1.0.0'],
    });
  });

  test('of a runtime without cniVersions are reduced to the highest common one', () => {
    const versions = new Map([['old', answered('0.3.1', '0.4.0')]]);
    expect(removeUnsupportedVersions(chain('old'), versions)).toMatchObject({
      cniVersion: '0.4.0',
      cniVersions: ['0.3.1', '0.4.0'],
    });
  });

  test.each([
    ['every program has them', chain('podwire'), answered(...ALL)],
    ['a program does not answer', chain('podwire'), { kind: 'failed', reason: 'EACCES' } as const],
    ['a program is missing', chain('podwire'), { kind: 'missing' } as const],
    ['no version would remain', chain('podwire'), answered('9.0.0')],
    ['cniVersions is absent', { cniVersion: '1.1.0', plugins: [{ type: 'podwire' }] }, answered('1.0.0')],
  ])('stay where %s', (_, offered, known) => {
    expect(removeUnsupportedVersions(offered, new Map([['podwire', known]]))).toEqual(offered);
  });
});

test('programs without which pods fail are reported, loopback too', () => {
  const versions = new Map<string, ProgramVersions>([
    ['podwire', answered('1.0.0')],
    ['portmap', { kind: 'missing' }],
    ['tuning', { kind: 'failed', reason: 'EACCES' }],
    ['loopback', { kind: 'missing' }],
  ]);
  expect(programFaults(chain('podwire', 'portmap', 'tuning'), versions, '/opt/cni/bin')).toEqual([
    'program portmap of the chain is missing in /opt/cni/bin: install it, or pods fail',
    '/opt/cni/bin/tuning does not answer VERSION like a CNI program (EACCES): replace it, or pods fail',
    expect.stringMatching(/^program loopback, .*use_internal_loopback.* is missing in \/opt\/cni\/bin: /),
  ]);
});
