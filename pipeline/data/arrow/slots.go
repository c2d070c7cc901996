package arrow

// Slots are the positions of fields in the tables of the metadata. A name is that of the table and of its field in the
// format's File.fbs, Message.fbs and Schema.fbs. Only those that are read are here.
const (
	footerSchema, footerDictionaries, footerRecordBatches               = 1, 2, 3
	messageHeaderType, messageHeader, messageBodyLength                 = 1, 2, 3
	recordBatchLength, recordBatchNodes, recordBatchBuffers             = 0, 1, 2
	recordBatchCompression, recordBatchVariadicBufferCounts             = 3, 4
	bodyCompressionCodec                                                = 0
	dictionaryBatchID, dictionaryBatchData, dictionaryBatchIsDelta      = 0, 1, 2
	schemaEndianness, schemaFields                                      = 0, 1
	fieldName, fieldTypeType, fieldType, fieldDictionary, fieldChildren = 0, 2, 3, 4, 5
	dictionaryEncodingID, dictionaryEncodingIndexType                   = 0, 1
	intBitWidth, intIsSigned                                            = 0, 1
	floatingPointPrecision                                              = 0
	unionMode                                                           = 0
)
