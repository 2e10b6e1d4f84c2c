import { expect, test } from 'vitest';

import { affinityName, cidrName, ownerHash } from './object-names.js';

test.each([
  ['10.65.79.0/26', '10-65-79-0-26'],
  ['fd80:24e2:f998:72d6::/122', 'fd80-24e2-f998-72d6---122'],
])('the name of %s', (cidr, name) => {
  expect(cidrName(cidr)).toBe(name);
});

test('the hash of a node is the one that Calico’s own tests have', () => {
  expect(ownerHash('node-a')).toBe('PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA');
});

test('a long node name is cut, so that affinities of different nodes have different names', () => {
  expect(affinityName('node-a', '10.65.0.0/26')).toBe('node-a-10-65-0-0-26');
  const names = ['a', 'b'].map((end) => affinityName('n'.repeat(252) + end, '10.65.0.0/26'));
  expect(new Set(names).size).toBe(2);
  for (const name of names) expect(name).toMatch(/^n+-[0-9a-f]{11}-10-65-0-0-26$/);
  for (const name of names) expect(name.length).toBeLessThanOrEqual(253);
});
