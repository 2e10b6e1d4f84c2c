import type { Namespace } from '@podwire/netlink';

import { hasErrno } from '../refusal.js';

/**
 * Gives a link another name. Before Linux 6.2 one that is up keeps its name (EBUSY): it is set down for it, and loses its routes.
 * @throws NetlinkError
 */
export async function renameLink(
  namespace: Pick<Namespace, 'sequence'>,
  { index, name }: { readonly index: number; readonly name: string },
): Promise<void> {
  const link = { index };
  const rename = { type: 'link.set', link, name } as const;
  const [atOnce] = await namespace.sequence([rename]);
  if (atOnce?.ok !== false) return;
  if (!hasErrno(atOnce.error, 'EBUSY')) throw atOnce.error;
  const down = { type: 'link.set', link, up: false } as const;
  const up = { type: 'link.set', link, up: true } as const;
  const [isDown, isRenamed] = await namespace.sequence([down, { optional: true, ...rename }, up]);
  for (const outcome of [isDown, isRenamed]) if (outcome?.ok === false) throw outcome.error;
}
