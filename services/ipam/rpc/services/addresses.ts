import { AddressServiceService, type AddressServiceServer } from '@podwire/proto/podwire/ipam/v1/address';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { allocate } from '../allocate.js';
import { assignAddresses } from '../assign-addresses.js';
import { explainAllocation } from '../explain-allocation.js';
import { getAddress } from '../get-address.js';
import { getEndpoint } from '../get-endpoint.js';
import { releaseAddresses } from '../release-addresses.js';
import { release } from '../release.js';
import { setAttributes } from '../set-attributes.js';

export function addressService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: AddressServiceServer = {
    allocate: unary(AddressServiceService.allocate, allocate(ipam)),
    assignAddresses: unary(AddressServiceService.assignAddresses, assignAddresses(ipam)),
    explainAllocation: unary(AddressServiceService.explainAllocation, explainAllocation(ipam)),
    release: unary(AddressServiceService.release, release(ipam)),
    getEndpoint: unary(AddressServiceService.getEndpoint, getEndpoint(ipam)),
    releaseAddresses: unary(AddressServiceService.releaseAddresses, releaseAddresses(ipam)),
    getAddress: unary(AddressServiceService.getAddress, getAddress(ipam)),
    setAttributes: unary(AddressServiceService.setAttributes, setAttributes(ipam)),
  };
  return { name: 'podwire.ipam.v1.AddressService', definition: AddressServiceService, implementation };
}
