import type { End, Repair } from './difference.js';
import { familyOf } from '@podwire/shared/net/address';
import { keyText } from './observed.js';
import { formatNeighbour, type Neighbour, type Step } from './step.js';

/**
 * Changing a link's MAC address deletes its neighbour entries, permanent ones too. Explicit deletions before, and additions
 * after, let a rollback restore them.
 * @returns the observed state without these entries, and the deletions
 */
export function clearNeighbours(end: End): [End, Repair[]] {
  const { wanted, observed } = end;
  if (observed.link?.mac === wanted.link.mac) return [end, []];
  const deletions = permanentOf(end).map((neighbour) => ({ step: deletionOf(end, neighbour), differences: [] }));
  return [{ ...end, observed: { ...observed, neighbours: [] } }, deletions];
}

export function repairNeighbours({ side, wanted, observed }: End): Repair[] {
  return wanted.neighbours.flatMap((neighbour): Repair[] => {
    const found = observed.neighbours.find(({ address }) => address === neighbour.address);
    if (found?.permanent === true && found.mac === neighbour.mac) return [];
    const previous: Neighbour | undefined =
      found?.permanent === true && found.mac !== null ? { ...neighbour, mac: found.mac } : undefined;
    const object = `${side} neighbour ${formatNeighbour(neighbour)}`;
    const actual = previous ? `lladdr ${previous.mac}` : found ? 'not permanent' : 'missing';
    return [
      {
        step: { type: 'neighbour-set', side, neighbour, previous },
        differences: [{ object, wanted: 'present', actual }],
      },
    ];
  });
}

/**
 * Entries of addresses that the attachment no longer has, and of a family that is about to be disabled on the link, which deletes
 * them.
 * @param stale - CIDRs of full length
 */
export function deleteNeighbours(end: End, stale: readonly string[]): Repair[] {
  const { side, wanted, observed } = end;
  const disabled = wanted.sysctls
    .filter(({ key, value }) => observed.sysctls.get(keyText(key)) !== value)
    .map(({ disables }) => disables);
  const isGone = ({ address }: Neighbour) =>
    stale.includes(`${address}/${familyOf(address) === 6 ? 128 : 32}`) || disabled.includes(familyOf(address));
  const isWanted = ({ address }: Neighbour) => wanted.neighbours.some((neighbour) => neighbour.address === address);
  return permanentOf(end)
    .filter((neighbour) => isGone(neighbour) && !isWanted(neighbour))
    .map((neighbour) => {
      const object = `${side} neighbour ${formatNeighbour(neighbour)}`;
      return { step: deletionOf(end, neighbour), differences: [{ object, wanted: 'absent', actual: 'present' }] };
    });
}

/** Addresses of the permanent entries on the link. */
export function permanentAddresses(end: End): string[] {
  return permanentOf(end).map(({ address }) => address);
}

function permanentOf({ wanted, observed }: End): Neighbour[] {
  return observed.neighbours.flatMap(({ address, mac, permanent }) =>
    permanent && mac !== null ? [{ device: wanted.link.name, address, mac }] : [],
  );
}

function deletionOf({ side }: End, neighbour: Neighbour): Step {
  return { type: 'neighbour-delete', side, neighbour };
}
