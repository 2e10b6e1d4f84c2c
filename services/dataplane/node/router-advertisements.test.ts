import { describe, expect, test } from 'vitest';

import { MemoryLinks } from '../testing/memory-links.js';
import { keepAcceptingAdvertisements, settingsToKeepAccepting } from './router-advertisements.js';

describe('accept_ra', () => {
  test.each([
    ['1', '0', '2'],
    ['0', '0', undefined],
    ['2', '0', undefined],
    ['1', '1', undefined],
    [null, null, undefined],
  ])('of %s on a link with forwarding %s becomes %s', (acceptRa, forwarding, expected) => {
    const [setting] = settingsToKeepAccepting([{ name: 'eth0', acceptRa, forwarding }]);
    expect(setting?.value).toBe(expected);
  });

  test('is written for the node’s own interfaces, once', async () => {
    const links = new MemoryLinks();
    for (const name of ['eth0', 'eth1', 'docker0', 'podw1']) {
      links.put({ name, mtuBytes: 1500, up: true });
      links.sysctls.set(`net/ipv6/conf/${name}/accept_ra`, name === 'eth1' ? '0' : '1');
      links.sysctls.set(`net/ipv6/conf/${name}/forwarding`, '0');
    }
    links.put({ name: 'eth2', mtuBytes: 1500, up: true });
    expect(await keepAcceptingAdvertisements(links, ['eth*'])).toEqual(['eth0']);
    const values = [...links.sysctls].filter(([key]) => key.endsWith('accept_ra')).map(([, value]) => value);
    expect(values).toEqual(['2', '0', '1', '1']);
    expect(await keepAcceptingAdvertisements(links, ['eth*'])).toEqual([]);
  });
});
