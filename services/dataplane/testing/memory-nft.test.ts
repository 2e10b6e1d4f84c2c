import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import { MemoryNft } from './memory-nft.js';
import { nftContract } from './nft-contract.js';

nftContract(() => new MemoryNft());

test('a fault fails the next call of its method, once', async () => {
  const nft = new MemoryNft();
  const table = { family: 'ip', name: 'podwire' } as const;
  nft.failNext('read', new Failure('KERNEL_REFUSED', 'for once'));
  await nft.apply([{ add: { table } }]);
  expect(nft.unusedFaults).toBe(1);
  await expect(nft.read(table)).rejects.toThrow('for once');
  expect(await nft.read(table)).toEqual([{ table }]);
  expect([nft.unusedFaults, nft.reads, nft.transactions]).toEqual([0, 2, 1]);
});
