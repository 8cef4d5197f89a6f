// What model.cc and model_load.cc share: the prepared weights of a decoder
// and the buffers a step works in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "model/model.h"

namespace nibble::model {

// One linear layer with what its plan line says about it. Owned by the Model,
// immutable after load.
struct Model::Linear {
  std::unique_ptr<kernels::LinearOp> op;
  std::string role;     // the tensors without "blk.N.", e.g. "attn_q+k+v"
  std::string formats;  // of the parts, e.g. "q4_k+q4_k+q6_k"

  std::string PlanLine() const;
};

// The weights of one decoder layer. Owned by the Model, immutable after load.
struct Model::Layer {
  std::unique_ptr<kernels::Buffer> attention_norm;  // [hidden]
  std::unique_ptr<kernels::Buffer> ffn_norm;        // [hidden]
  Linear qkv;       // [(heads + 2 kv_heads) * head_dim, hidden]
  Linear attn_out;  // [hidden, heads * head_dim]
  Linear gate_up;   // [2 ffn, hidden]
  Linear down;      // [hidden, ffn]
};

// The buffers of one step, sized once for the largest. Owned by the Model,
// engine thread only.
struct Model::Scratch {
  std::unique_ptr<kernels::Buffer> hidden;       // [max rows, hidden], residual
  std::unique_ptr<kernels::Buffer> qkv;          // [max rows, qkv]
  std::unique_ptr<kernels::Buffer> gate_up;      // [max rows, 2 ffn]
  std::unique_ptr<kernels::Buffer> last;         // [max logit rows, hidden]
  std::unique_ptr<kernels::Buffer> logits;       // [max logit rows, vocab]
  std::unique_ptr<kernels::Activations> normed;  // [max rows, hidden]
  std::unique_ptr<kernels::Activations> attended;     // [max rows, heads * dim]
  std::unique_ptr<kernels::Activations> gated;        // [max rows, ffn]
  std::unique_ptr<kernels::Activations> last_normed;  // [logit rows, hidden]
};

}  // namespace nibble::model
