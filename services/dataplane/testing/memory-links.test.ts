import { MemoryLinks } from './memory-links.js';
import { linkSourceContract } from './node-kernel-contract.js';

linkSourceContract(() => {
  const source = new MemoryLinks();
  source.sysctls.set('net/ipv6/conf/lo/accept_ra', '1');
  return Promise.resolve({
    source,
    changer: source,
    sysctl: { key: ['net', 'ipv6', 'conf', 'lo', 'accept_ra'], value: '2' },
  });
});
