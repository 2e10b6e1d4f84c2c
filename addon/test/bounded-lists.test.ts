import { expect, it } from 'vitest';

import type { ListBounds, Namespace, Request } from '../lib/index.js';
import { codes, makePod, open, vethPair } from './ip.js';

/** Lists of a namespace that another program fills end at a limit, and the namespace stays usable. */

const COUNT = 300;
const MAC = '02:00:00:00:00:01';
const LINK = { name: 'near0' };

const each = (request: (number: number, last: string) => Request): Request[] =>
  Array.from({ length: COUNT }, (_, number) => request(number, `${number >> 8}.${number & 255}`));

/** A namespace with at least {@link COUNT} objects of every listed kind. */
async function filled(): Promise<Namespace> {
  const inside = await open(makePod().path);
  const batches: Request[][] = [
    each((number) => vethPair(`near${number}`, inside, `far${number}`)),
    [{ type: 'link.set', link: LINK, up: true }],
    each((_, last) => ({ type: 'address.add', link: LINK, address: `10.1.${last}/32` })),
    each((_, last) => ({ type: 'neighbour.add', link: LINK, mac: MAC, address: `10.2.${last}` })),
    each((number) => ({ type: 'rule.add', source: '10.3.0.0/16', table: 1000 + number })),
    each((_, last) => ({ type: 'route.add', output: LINK, destination: `10.4.${last}/32` })),
  ];
  for (const requests of batches) expect(new Set(codes(await inside.batch(requests)))).toEqual(new Set(['ok']));
  return inside;
}

it('each list beyond its limit is refused, and the next one is complete', async () => {
  const inside = await filled();
  const lists: readonly ((bounds: ListBounds) => Promise<readonly unknown[]>)[] = [
    (bounds) => inside.links(bounds),
    (bounds) => inside.addresses(bounds),
    (bounds) => inside.neighbours(bounds),
    (bounds) => inside.rules(bounds),
    (bounds) => inside.routes(bounds),
    // Filtered entries count as well.
    (bounds) => inside.routes({ destination: '10.4.0.7/32', ...bounds }),
  ];
  for (const list of lists) {
    const whole = await list({});
    await expect(list({ maxCount: COUNT - 1 })).rejects.toMatchObject({
      code: 'E2BIG',
      kernelMessage: `more than ${COUNT - 1} in the list`,
    });
    expect(await list({ maxCount: 10 * COUNT, timeoutMs: 600_000 })).toEqual(whole);
  }
});
